"""Stand-ins for the API server and the scheduler: real HTTP, objects in memory."""
