"""Routing: what a selection costs inside a router, and how evenly streams are spread by it.

``perf.select`` and ``perf.spread`` say what the figures are. Of Dynamo's wheel there is the spread.
"""

from __future__ import annotations

from perf.figures import Sample
from perf.plan import Plan
from perf.spread import spread


async def run(plan: Plan) -> list[Sample]:
    """Both parts, one after the other."""
    if plan.dynamo:
        return await spread(plan)
    from perf.select import select, select_by_user

    return [*select(plan), *await select_by_user(plan), *await spread(plan)]
