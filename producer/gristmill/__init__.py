"""Gristmill's light side: contract, requests, queues, stores, ledger, control tasks, CLI.

Importing this package stays fast and pulls in no torch, transformers, boto3, celery or sqlalchemy.
"""
