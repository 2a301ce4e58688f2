"""The checkpoint coordinator of one job: when to trigger, who has answered, what is complete, what is kept.

Read in this order: `messages` (the alphabet), `coordinator` (the door), then the rooms in the order in which
a checkpoint meets them: `scheduler`, `request_decider`, `plan`, `triggering`, `pending`, `completion`,
`completed` with `shared_state`, `failure_policy`, `statistics`; `recovery` and `restoring` at a restore, `stop`
at a stop with savepoint. `books` is what they share.
"""
