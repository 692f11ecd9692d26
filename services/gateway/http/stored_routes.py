"""The paths of all that is kept for clients: responses, conversations, files, batches."""

from starlette.requests import Request
from starlette.routing import Route

from services.gateway.batches.store import BatchStore
from services.gateway.gateway import Gateway
from services.gateway.http.batches import BatchesApi, OwnerOf
from services.gateway.http.conversations import ConversationsApi
from services.gateway.http.files import FilesApi
from services.gateway.http.stored_responses import PrincipalOf, ResponsesApi
from services.gateway.stored.reads import MeteredCommands, ReadLimit
from services.gateway.stored.store import Store
from services.gateway.tenants.principal import Principal


def stored_routes(gateway: Gateway, principal_of: PrincipalOf, owner_of: OwnerOf) -> list[Route]:
    """The paths and their methods; none where nothing is kept. What is read here is bounded for
    each tenant."""
    if gateway.store is None:
        return []
    clock, rng, limit = gateway.clock, gateway.rng, ReadLimit(gateway.clock)
    commands = MeteredCommands(gateway.store.commands, limit)
    store = Store(commands, gateway.store.limits, clock)
    batches = BatchStore(store)

    async def admitted(request: Request) -> Principal:
        principal = await principal_of(request)
        limit.admit(principal.tenant)
        return principal

    return [
        *ResponsesApi(store, admitted).routes(),
        *ConversationsApi(store, admitted, clock, rng).routes(),
        *FilesApi(batches, admitted, clock, rng).routes(),
        *BatchesApi(batches, admitted, owner_of, clock, rng).routes(),
    ]
