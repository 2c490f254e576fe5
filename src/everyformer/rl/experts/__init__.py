"""Experts: policies that solve an environment by knowing how it works, without learning."""
