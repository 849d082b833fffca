"""Leases: how long P keeps a prompt's KV blocks, agreed between router and workers."""
