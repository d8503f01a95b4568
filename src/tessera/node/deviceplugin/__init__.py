"""The kubelet's device plugin protocol, v1beta1: what sources report, sent to the kubelet and handed to containers.

`plugin` decides what is published, `endpoint` keeps one resource registered, `service` answers the kubelet's calls about
it, `process` puts them together. Where devices come from does not belong here.
"""
