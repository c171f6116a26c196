"""The web console: an HTTP API, pages for people, and one live stream per page.

It reads what the backend shows and sends what people ask for as events; it writes no table of the control
plane.
"""
