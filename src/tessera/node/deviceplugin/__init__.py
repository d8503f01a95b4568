"""The kubelet's device plugin protocol, v1beta1: what sources report, sent to the kubelet and handed to containers.

`plugin` puts it together and decides what is published, `endpoint` keeps one resource registered, `service` answers the kubelet's
calls about it, `allocations` knows what pods hold, `withdrawn` what a pod may yet ask for. Where devices come from does not belong here.
"""
