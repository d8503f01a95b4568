"""MigLayouts: each of its nodes gets its layout, a few at a time; in mode Auto the autopilot decides which.

`judging` says of one node whether it has its layout, `slots` which records of rollouts on nodes count. `plan`
is pure: from MigLayouts and nodes to slots, what may begin, and the status; so are
`autopilot` and `decisions`, which do it by what pods wait for; `looking` follows that and has it decided, beside the loop. `reconciler` follows the
cluster and carries it out by `rollout`; `status` has what is written to a MigLayout, and when, `configurations` what mig-manager gets.
"""
