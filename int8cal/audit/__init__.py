"""The audit of int8 models of any tool: what can saturate, whether it does on data, and a repaired copy.

Two entries: `audit.audit_file` behind `int8cal audit`, `worst_case.audit_saturation` for the report of an evaluation.
"""
