"""The kubelet's device plugin protocol, v1beta1: what sources say, told to the kubelet and handed to containers.

`plugin` decides what is published, `endpoint` keeps one resource registered, `service` answers the kubelet's questions about
it. Where devices come from does not belong here.
"""
