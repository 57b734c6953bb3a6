"""Topolet: a node resource agent for Kubernetes."""

VERSION = "0.1.0"
