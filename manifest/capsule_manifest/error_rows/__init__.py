"""The rows of the error table, by the part that raises them; `error_table` puts them together."""

__all__: list[str] = []
