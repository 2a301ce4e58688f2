"""The whole job as one machine: channels, routing, credit, and which vertex may run which micro-batch.

It joins the doors of `coordinator`, `gate`, `task` and `commit`, and repeats none of their rules. `door.JobDoor`
decides the order, and `door.Wiring` passes each effect to the door to which it is addressed.
"""
