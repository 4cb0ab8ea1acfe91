"""One surface to control what runs on this machine, and to look at its records.

actions      kill, pause, cut, heal and others, for the commands and for the page
clusters     the clusters and mirrors behind the names of things
records      records of topics for people: a tail, and two sides of a mirror
process      a process that answers one request of the page, and ends
"""
