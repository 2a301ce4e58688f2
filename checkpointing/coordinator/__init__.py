"""The checkpoint coordinator of one job: it triggers checkpoints, collects answers, completes and keeps checkpoints.

Read in this order: `messages` (the alphabet), `coordinator` (the door, which also serves a restore), then the modules
in the order in which a checkpoint meets them: `triggering`, `plan`, `pending`, `completion`, `completed`,
`failure_policy`, `statistics`. `coordinator_state` holds the data that they share.
"""
