"""Removal of finished rows from the batch of a search."""


class ActiveRows:
    """The rows of the batch that are still generated.

    Finished rows are removed only once they are an eighth of the batch, because removal copies the caches.
    """

    def __init__(self, rows: int) -> None:
        self.rows = list(range(rows))  # original indices of the remaining rows

    def compact(self, done: list[bool]) -> list[int] | None:
        """Indices of the remaining rows within the current batch if it is time to remove finished ones, otherwise None.
        """
        if sum(done) * 8 < len(self.rows) or not any(done):
            return None
        remaining = [i for i, finished in enumerate(done) if not finished]
        self.rows = [self.rows[i] for i in remaining]
        return remaining
