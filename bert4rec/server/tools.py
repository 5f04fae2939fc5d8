"""Tools for assistants: the server as three tools of the Model Context Protocol."""

from collections.abc import Callable
from typing import Annotated, Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import BaseModel, Field

from bert4rec.dataset.format import NO_ITEM
from bert4rec.runtime.errors import UserError
from bert4rec.server.batches import TooBusyError
from bert4rec.server.bodies import FoundItem, Id, Item
from bert4rec.server.parts import Parts
from bert4rec.server.scorer import Options, Problem, Query
from bert4rec.server.served import Served

MOST_SHOWN = 50
INSTRUCTIONS = (
    "Recommendations from a model that has learnt in which order people take items. Find ids of items with "
    "search_items; then ask what comes next with recommend, or what is alike with similar_items."
)

Number = Annotated[int, Field(ge=1, le=MOST_SHOWN, description="the number of items to return")]


class Recommended(BaseModel):
    """A list of items, the best first."""

    items: list[Item]
    note: str = Field(description="what to know about the list; empty if there is nothing")
    version: str = Field(description="the version of the model that answered")


class Found(BaseModel):
    """Items that a search has found, the best first."""

    items: list[FoundItem]


def make_tools(parts: Callable[[], Parts]) -> MCPServer:
    """Return the tools, which let the `parts` answer."""
    server: MCPServer = MCPServer("bert4rec", instructions=INSTRUCTIONS, log_level="ERROR")

    async def recommend(
        items: Annotated[
            list[Id] | None,
            Field(description="ids of items that were taken, the oldest first, as search_items returns them"),
        ] = None,
        user: Annotated[Id | None, Field(description="the id of a known user, instead of items")] = None,
        k: Number = 10,
        where: Annotated[
            str | None, Field(description="a condition in SQL over the columns of the items, as category = 'books'")
        ] = None,
    ) -> Recommended:
        """Recommend what someone is likely to take next, after some items in the order in which they were taken.

        Give either items or the id of a user. Without any known item, popular items are returned, and the note says so.
        """
        if (items is None) == (user is None):
            raise ToolError("give either items or a user")
        query = Query(k, Options(where=where), user, items)
        (answer,) = await _answered(parts().scorer.recommend([query]))
        notes = [f"the model does not know: {', '.join(map(str, answer.unknown))}"] if answer.unknown else []
        if not answer.is_known:
            notes.append("the user is not known")
        if answer.found.is_fallback:
            notes.append("these are popular items, since the model knows no item of the history")
        shown = [Item(**one._asdict()) for one in answer.found]
        return Recommended(items=shown, note="; ".join(notes), version=answer.version)

    async def similar_items(
        item: Annotated[Id, Field(description="the id of an item, as search_items returns it")], k: Number = 10
    ) -> Recommended:
        """Find the items that are most similar to an item: people take them in the same places of their histories."""

        def similar(served: Served) -> Recommended:
            if served.model.ids.indices([item])[0] == NO_ITEM:
                raise Problem(f"the model does not know the item {item}; look for it with search_items")
            (found,) = served.model.similar([item], k)
            return Recommended(items=[Item(**one._asdict()) for one in found], note="", version=served.version)

        answer: Recommended = await _answered(parts().scorer.do(similar))
        return answer

    async def search_items(
        query: Annotated[str, Field(max_length=200, description="words of a title; empty: the most popular items")],
        limit: Number = 10,
    ) -> Found:
        """Search items by the words of their titles, in any order; the most popular ones come first."""
        served = parts().scorer.served
        indices, ids = served.search.find(query, limit), served.model.ids
        names = zip(ids.of(indices), ids.titles_of(indices), strict=True)
        return Found(items=[FoundItem(item=item, title=title) for item, title in names])

    for tool in (recommend, similar_items, search_items):
        server.tool(title=tool.__name__.replace("_", " "))(tool)
    return server


def tools_app(tools: MCPServer) -> Any:
    """Return the tools as an application at /mcp, without sessions, so that any process can answer.

    A name of the server is not checked: that is what the key is for.
    """
    hosts = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    return tools.streamable_http_app(json_response=True, stateless_http=True, transport_security=hosts)


async def _answered(asked: Any) -> Any:
    """Return what is awaited; an error says to the assistant what is wrong."""
    try:
        return await asked
    except Problem as problem:
        raise ToolError(problem.text) from None
    except TooBusyError:
        raise ToolError("too many requests wait; try again later") from None
    except UserError as error:
        raise ToolError(str(error)) from None
