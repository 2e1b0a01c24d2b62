"""One module a suite: ``async def run(plan: Plan) -> list[Sample]``, called by the worker."""
