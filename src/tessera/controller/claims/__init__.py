"""The templates of claims that the webhook has put in place of requests, and the record of what the scheduler chose.

`state` reads, keeps and indexes what the cluster has, `plan` says what is to be done about it (pure), `reconciler`
follows the cluster and carries out the plan.
"""
