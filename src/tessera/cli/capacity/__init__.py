"""`tessera capacity`: what is there, what is taken, what is left.

What belongs here: options, and a report as tables, as documents, and as a picture that is drawn again and again. What is counted is
`inventory`'s business.
"""
