"""The checkpoint coordinator of one job: it triggers checkpoints, collects answers, completes and keeps checkpoints.

Read in this order: `messages` (the alphabet), `coordinator` (the door), then the modules in the order in which a
checkpoint meets them: `scheduler`, `request_decider`, `plan`, `triggering`, `pending`, `completion`, `completed` with
`shared_state`, `failure_policy`, `statistics`. `restoring` serves a restore, and `restart` decides about restarts.
`books` holds the data that they share.
"""
