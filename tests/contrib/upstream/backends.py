"""Our backend as Django's tests need it: they read what a backend of theirs has in memory, or has run at once."""

from django.db import connection

from pgqueue.contrib.django import Backend, drain


class Enqueues(Backend):
    """In the place of Django's DummyBackend, which keeps what is enqueued in a list. Here the list is the table."""

    def enqueue(self, task, args, kwargs):
        """Enqueue, and take the time of it from the database: until then, `enqueued_at` is this process's."""
        result = super().enqueue(task, args, kwargs)
        result.refresh()
        return result

    @property
    def results(self):
        """Return the results of all jobs."""
        return [self.get_result(str(job_id)) for job_id in self._ids()]

    def clear(self):
        """Delete all jobs."""
        with connection.cursor() as cursor:
            for job_id in self._ids():
                cursor.execute("select pgqueue.delete(%s)", [job_id])

    def _ids(self):
        with connection.cursor() as cursor:
            cursor.execute("select id from pgqueue.all_jobs order by id")
            return [row[0] for row in cursor.fetchall()]


class Runs(Backend):
    """In the place of Django's ImmediateBackend, which runs a task in enqueue. Here drain does."""

    def enqueue(self, task, args, kwargs):
        """Enqueue, run due jobs, and return the result as it is then."""
        # Django's fails at once, and ours would try again.
        result = super().enqueue(task.using(max_attempts=1), args, kwargs)
        object.__setattr__(result, "task", task)
        drain(raise_errors=False)
        result.refresh()
        return result
