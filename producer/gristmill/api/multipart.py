"""A multipart/form-data body with one file, read once, in memory that the file cannot grow."""

from __future__ import annotations

from collections.abc import Iterator
from email.message import Message

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser

from gristmill.api.failures import ApiError, refused

_MAX_FIELDS = 32
_MAX_FIELD_BYTES = 16 * 1024


class MultipartUpload:
    """`file_chunks` reads the body to its end; then `fields` and `filename` are complete."""

    def __init__(self, content_type: str, body: Iterator[bytes], *, max_file_bytes: int) -> None:
        header = Message()
        header["content-type"] = content_type
        boundary = header.get_boundary()
        if header.get_content_type() != "multipart/form-data" or not boundary:
            raise refused(
                f"The content type is {content_type[:80]!a}. Send multipart/form-data with the "
                "fields `file` and `purpose`.",
                param=None,
            )
        self._body = body
        self._max_file_bytes = max_file_bytes
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self._num_file_bytes = 0
        self._chunks: list[bytes] = []
        self._field = bytearray()
        self._name, self._is_file, self._is_complete = "", False, False
        self._header_name, self._header_value = bytearray(), bytearray()
        self._disposition = Message()
        try:
            self._parser = MultipartParser(
                boundary.encode("latin-1", "replace"),
                {
                    "on_part_begin": self._begin_part,
                    "on_header_field": self._add_header_name,
                    "on_header_value": self._add_header_value,
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._end_headers,
                    "on_part_data": self._add_data,
                    "on_part_end": self._end_part,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise _broken(str(error)) from error

    def file_chunks(self) -> Iterator[bytes]:
        """The bytes of the file. Raises ApiError for a body that is broken or too large."""
        for piece in self._body:
            try:
                self._parser.write(piece)
            except FormParserError as error:
                raise _broken(str(error)) from error
            yield from self._chunks
            self._chunks.clear()
        if not self._is_complete:
            raise _broken("it ends in the middle")
        if self.filename is None:
            raise refused("file: this field is required, with a file name.", param="file")

    def _begin_part(self) -> None:
        self._disposition = Message()
        self._field.clear()

    def _add_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _add_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _end_header(self) -> None:
        if self._header_name.lower() == b"content-disposition":
            value = self._header_value.decode("utf-8", "replace")
            self._disposition["content-disposition"] = value.replace("\r", " ").replace("\n", " ")
        self._header_name.clear()
        self._header_value.clear()

    def _end_headers(self) -> None:
        name = self._disposition.get_param("name", header="content-disposition")
        filename = self._disposition.get_filename()
        self._name = name if isinstance(name, str) else ""
        self._is_file = filename is not None
        if not self._is_file:
            return
        if self._name != "file" or self.filename is not None:
            raise refused("The body holds more than the one file `file`.", param=self._name[:80])
        self.filename = filename

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self._num_file_bytes += end - start
            if self._num_file_bytes > self._max_file_bytes:
                raise too_large(self._max_file_bytes)
            self._chunks.append(data[start:end])
            return
        self._field += data[start:end]
        if len(self._field) > _MAX_FIELD_BYTES:
            raise refused("The field is too long.", param=self._name[:80])

    def _end_part(self) -> None:
        if self._is_file:
            return
        if self._name in self.fields or len(self.fields) == _MAX_FIELDS:
            raise refused("The field stands there twice, or there are too many.", param=self._name)
        self.fields[self._name] = self._field.decode("utf-8", "replace")

    def _end(self) -> None:
        self._is_complete = True


def too_large(max_file_bytes: int) -> ApiError:
    return refused(
        f"File is too large. At most {max_file_bytes} bytes are taken; split it.",
        param="file",
        code="file_too_large",
    )


def _broken(why: str) -> ApiError:
    return refused(f"The multipart body is broken: {why[:200]}.", param=None, code="invalid_body")
