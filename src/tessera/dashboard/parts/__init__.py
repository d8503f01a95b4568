"""The parts that the page is sent: capacity and its history, demand by namespace, pods that wait, admissions, layouts. Each module is one subject."""
