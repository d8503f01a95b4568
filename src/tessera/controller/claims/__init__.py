"""The templates of claims that the webhook has put in place of requests, and the record of what the scheduler chose.

`objects` reads what the cluster has, `state` keeps and indexes it, `plan` says what is to be done about it (pure), `reconciler`
follows the cluster and has `writes` carry out the plan.
"""
