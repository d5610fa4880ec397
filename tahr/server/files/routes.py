"""The routes of OpenAI's files and batches."""

from tahr.server.files import batches, bodies, files
from tahr.server.state.route import Route

ROUTES = [
    Route("POST", "/v1/files", files.upload, bodies.FileBody, bodies.FileReply, takes_form=True),
    Route("GET", "/v1/files", files.list_files, gives=bodies.FileList),
    Route("GET", "/v1/files/", files.get_file, gives=bodies.FileReply),
    Route("DELETE", "/v1/files/", files.delete_file, gives=bodies.DeletedFile),
    Route("GET", "/v1/files/{id}/content", files.get_content),
    Route("POST", "/v1/batches", batches.create_batch, bodies.BatchBody, bodies.BatchReply),
    Route("GET", "/v1/batches", batches.list_batches, gives=bodies.BatchList),
    Route("GET", "/v1/batches/", batches.get_batch, gives=bodies.BatchReply),
    Route("POST", "/v1/batches/{id}/cancel", batches.cancel_batch, gives=bodies.BatchReply),
]
