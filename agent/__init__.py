"""Topolet: a node resource agent for Kubernetes."""
