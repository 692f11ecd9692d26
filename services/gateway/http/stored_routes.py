"""The paths of all that is kept for clients: responses, conversations, files, batches."""

from starlette.routing import Route

from services.gateway.gateway import Gateway
from services.gateway.http.batches import BatchesApi, OwnerOf
from services.gateway.http.conversations import ConversationsApi
from services.gateway.http.files import FilesApi
from services.gateway.http.stored_responses import PrincipalOf, ResponsesApi


def stored_routes(gateway: Gateway, principal_of: PrincipalOf, owner_of: OwnerOf) -> list[Route]:
    """The paths and their methods; none where nothing is kept."""
    store, batches, clock, rng = gateway.store, gateway.batches, gateway.clock, gateway.rng
    if store is None or batches is None:
        return []
    return [
        *ResponsesApi(store, principal_of).routes(),
        *ConversationsApi(store, principal_of, clock, rng).routes(),
        *FilesApi(batches, principal_of, clock, rng).routes(),
        *BatchesApi(batches, principal_of, owner_of, clock, rng).routes(),
    ]
