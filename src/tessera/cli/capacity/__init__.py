"""`tessera capacity`: what is there, what is taken, what is left."""
