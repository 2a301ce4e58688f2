"""The checkpoint coordinator of one job. It triggers, completes and keeps checkpoints.

Read in this order: `messages` (all facts and effects), `coordinator` (the door, which also serves a restore), then the
modules in the order in which a checkpoint passes through them: `triggering`, `plan`, `pending`, `completion`,
`completed`, `failure_policy`, `statistics`. `coordinator_state` holds the data that they share.
"""
