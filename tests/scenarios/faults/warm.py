"""Imported once by the fork server: what each tick's process would spend seconds on.

Nothing here may open a table or a frame: delta-rs and Polars start threads that do not survive a fork.
"""

import great_expectations.core.expectation_suite
import great_expectations.execution_engine.pandas_execution_engine  # noqa: F401
import pyspark.sql.connect.dataframe
import pyspark.sql.connect.session  # noqa: F401

import tests.scenarios.faults.orders_job
import tests.scenarios.faults.processes  # noqa: F401
