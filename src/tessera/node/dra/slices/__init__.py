"""What the node offers: devices under their names and in their order, ResourceSlices, and keeping them in the API server.

Devices → `documents` → `plan` → `publisher`. All but the last are pure. Claims, and everything that happens on the node itself,
are next door.
"""
