"""The worker's gRPC side of WorkerFiles: gives the small files of its model to tokenizers.

They were read when the model was loaded: files that change in the folder afterwards are not those
of the weights in memory.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from baton.engine.protocol.messages import EngineInfo
from baton.runtime.grpc_server import translate_failures
from baton.wire.failures import Overloaded, Unavailable
from baton.wire.model_files import ModelFiles, chunks, read_model_files
from baton.wire.v1 import worker_pb2, worker_pb2_grpc

# Each tokenizer asks once. One that reads slowly holds its place and no copy.
MAX_READERS = 16


def files_of(info: EngineInfo) -> ModelFiles | None:
    """The files of a loaded model; None where its core did not say where they are. Blocking.

    Raises BadModelFiles when one has changed since it was loaded.
    """
    if not info.file_digests:
        return None
    made = Path(info.tokenizer_file) if info.tokenizer_file is not None else None
    return read_model_files(Path(info.model_folder), info.file_digests, made)


class WorkerFilesServicer(worker_pb2_grpc.WorkerFilesServicer):
    """Add it to the worker's server. `files`: None = this worker gives none."""

    def __init__(self, files: ModelFiles | None) -> None:
        self._model_fp = "" if files is None else files.fingerprint
        self._data = b"" if files is None else files.encoded()
        self._num_readers = 0

    @translate_failures
    async def GetModelFiles(
        self,
        request: worker_pb2.GetModelFilesRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[worker_pb2.GetModelFilesResponse]:
        if not self._data or request.model_fp != self._model_fp:
            raise Unavailable("this worker has no files of that model")
        if self._num_readers >= MAX_READERS:
            raise Overloaded(f"{MAX_READERS} tokenizers read these files already", retry_after_s=1)
        self._num_readers += 1
        try:
            yield worker_pb2.GetModelFilesResponse(num_bytes=len(self._data))
            for data in chunks(self._data):
                yield worker_pb2.GetModelFilesResponse(data=data)
        finally:
            self._num_readers -= 1
