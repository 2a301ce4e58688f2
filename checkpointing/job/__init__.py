"""The whole job as one machine: channels, routing, credit, and which vertex may run which micro-batch.

It composes the doors of the other rooms (`coordinator`, `gate`, `task`, `commit`) and holds nothing of
their rules: effects addressed to another door go through `door.JobDoor`, a plain router.
"""
