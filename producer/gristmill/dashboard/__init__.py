"""The dashboard: pages for people, in the process of the API and over the same functions."""
