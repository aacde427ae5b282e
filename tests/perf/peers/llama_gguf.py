"""The default model for llama.cpp: its GGUF file once more, with the fp32 weights kvtop computes with."""

from __future__ import annotations

from pathlib import Path

COMPUTED = ("GGUF.", "general.architecture", "general.file_type", "general.quantization_version")
"""Keys that the writer sets by itself, or that speak of the quantisation."""


def write_fp32(source: Path, target: Path) -> None:
    """Copy metadata and tokenizer, and dequantise every tensor as kvtop does.

    The rows of q and k stay in llama.cpp's order; kvtop, like transformers, wants another one and reorders them as it
    reads. The values are the same.
    """
    from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType, dequantize

    reader = GGUFReader(source)
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if not field.name.startswith(COMPUTED):
            kind, *item = field.types
            item_kind = item[-1] if kind == GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, sub_type=item_kind)
    writer.add_file_type(LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype("float32")
        writer.add_tensor(tensor.name, values, raw_dtype=GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
