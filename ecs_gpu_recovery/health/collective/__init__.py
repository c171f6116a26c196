"""Do the nodes of a job reach each other, and fast enough?"""
