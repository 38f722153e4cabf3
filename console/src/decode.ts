// Payloads as text, by the schema with which they were published: JSON, strings, numbers, Avro, Protobuf, key-value.
import { createFileRegistry, fromBinary, toJson } from "@bufbuild/protobuf";
import { type FileDescriptorProto, FileDescriptorSetSchema } from "@bufbuild/protobuf/wkt";

export interface StoredSchema {
  version: number;
  type: string;
  data: string;
  properties: Record<string, string>;
}

export interface Decoded {
  text: string;
  how: string;
}

export function bytesOf(base64: string): Uint8Array {
  return Uint8Array.from(atob(base64), (one) => one.charCodeAt(0));
}

export function base64Of(bytes: Uint8Array): string {
  let text = "";
  for (const one of bytes) text += String.fromCharCode(one);
  return btoa(text);
}

export function versionOf(base64: string): number | null {
  const bytes = bytesOf(base64);
  return bytes.length === 8 ? Number(new DataView(bytes.buffer).getBigInt64(0)) : null;
}

export function decode(payload: Uint8Array, schema: StoredSchema | undefined): Decoded {
  if (schema) {
    try {
      return { text: bySchema(payload, schema), how: `${schema.type}, version ${schema.version}` };
    } catch (error) {
      const reason = error instanceof Error ? error.message : String(error);
      return { text: plain(payload), how: `not ${schema.type}: ${reason}` };
    }
  }
  return { text: plain(payload), how: "no schema" };
}

function bySchema(payload: Uint8Array, schema: StoredSchema): string {
  const view = new DataView(payload.buffer, payload.byteOffset, payload.byteLength);
  switch (schema.type) {
    case "JSON":
      return pretty(JSON.parse(utf8(payload)));
    case "STRING":
      return utf8(payload);
    case "BOOLEAN":
      return String(view.getUint8(0) !== 0);
    case "INT8":
      return String(view.getInt8(0));
    case "INT16":
      return String(view.getInt16(0));
    case "INT32":
      return String(view.getInt32(0));
    case "INT64":
      return String(view.getBigInt64(0));
    case "FLOAT":
      return String(view.getFloat32(0));
    case "DOUBLE":
      return String(view.getFloat64(0));
    case "AVRO":
      return pretty(avro(payload, JSON.parse(schema.data)));
    case "KEY_VALUE":
      return keyValue(payload, schema);
    case "PROTOBUF_NATIVE":
      return pretty(protobuf(payload, schema.data));
    case "PROTOBUF":
      throw new Error("this type of schema has no descriptors; PROTOBUF_NATIVE has them");
    default:
      return plain(payload);
  }
}

interface Descriptors {
  fileDescriptorSet: string;
  rootMessageTypeName: string;
}

function protobuf(payload: Uint8Array, data: string): unknown {
  const stored = JSON.parse(data) as Descriptors;
  const files = fromBinary(FileDescriptorSetSchema, bytesOf(stored.fileDescriptorSet));
  files.file = imported(files.file);
  const registry = createFileRegistry(files);
  const type = registry.getMessage(stored.rootMessageTypeName);
  if (!type) throw new Error(`the schema does not describe its message ${stored.rootMessageTypeName}`);
  // Names as in the .proto file: descriptors inside generated code have no JSON names.
  return toJson(type, fromBinary(type, payload), { registry, useProtoFieldName: true });
}

// Each file after those that it imports: Java clients store them in the order of a hash map.
function imported(files: FileDescriptorProto[]): FileDescriptorProto[] {
  const left = new Map(files.map((one) => [one.name, one]));
  const found: FileDescriptorProto[] = [];
  const add = (file: FileDescriptorProto) => {
    if (!left.delete(file.name)) return;
    for (const name of file.dependency) {
      const other = left.get(name);
      if (other) add(other);
    }
    found.push(file);
  };
  files.forEach(add);
  return found;
}

function keyValue(payload: Uint8Array, schema: StoredSchema): string {
  const parts = JSON.parse(schema.data) as { key: unknown; value: unknown };
  const of = (side: "key" | "value", bytes: Uint8Array) =>
    decode(bytes, {
      version: schema.version,
      type: schema.properties[side === "key" ? "key.schema.type" : "value.schema.type"] ?? "BYTES",
      data: typeof parts[side] === "string" ? (parts[side] as string) : JSON.stringify(parts[side]),
      properties: {},
    }).text;
  if (schema.properties["kv.encoding.type"] === "SEPARATED") return `value: ${of("value", payload)}`;
  const view = new DataView(payload.buffer, payload.byteOffset, payload.byteLength);
  const cut = (at: number): [Uint8Array, number] => {
    const size = view.getInt32(at);
    const end = at + 4 + Math.max(size, 0);
    if (end > payload.length) throw new Error("the lengths do not fit the payload");
    return [payload.subarray(at + 4, end), end];
  };
  const [key, end] = cut(0);
  const [value] = cut(end);
  return `key: ${of("key", key)}\nvalue: ${of("value", value)}`;
}

export function pretty(value: unknown): string {
  return JSON.stringify(value, (_, one) => (typeof one === "bigint" ? Number(one) : one), 2);
}

function utf8(bytes: Uint8Array): string {
  return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
}

function plain(bytes: Uint8Array): string {
  try {
    const text = utf8(bytes);
    if (!/[\0-\x08\x0e-\x1f]/.test(text)) return text;
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
  }
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, 1024); at += 16) {
    const row = [...bytes.subarray(at, at + 16)];
    const hex = row.map((one) => one.toString(16).padStart(2, "0")).join(" ");
    const text = row.map((one) => (one > 31 && one < 127 ? String.fromCharCode(one) : ".")).join("");
    lines.push(`${at.toString(16).padStart(4, "0")}  ${hex.padEnd(47)}  ${text}`);
  }
  if (bytes.length > 1024) lines.push(`… ${bytes.length - 1024} bytes more`);
  return lines.join("\n");
}

// Avro's binary encoding (specification 1.11), read only. Sizes are checked against what is left of the payload.
type AvroSchema = string | AvroSchema[] | { type: AvroSchema; [key: string]: unknown };

export function avro(bytes: Uint8Array, schema: AvroSchema): unknown {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const named = new Map<string, AvroSchema>();
  let at = 0;
  let values = 0;

  const take = (size: number): number => {
    if (size < 0 || at + size > bytes.length) throw new Error("the payload ends too early");
    at += size;
    return at - size;
  };
  const long = (): bigint => {
    let value = 0n;
    for (let shift = 0n; shift < 70n; shift += 7n) {
      const byte = bytes[take(1)]!;
      value |= BigInt(byte & 0x7f) << shift;
      if (byte < 0x80) return (value >> 1n) ^ -(value & 1n);
    }
    throw new Error("a number is too long");
  };
  const int = () => Number(long());
  const chunk = () => {
    const size = int();
    const start = take(size);
    return bytes.subarray(start, start + size);
  };
  const blocks = (each: () => void) => {
    for (let count = int(); count !== 0; count = int()) {
      if (count < 0) {
        count = -count;
        int();
      }
      for (let left = count; left > 0; left--) each();
    }
  };

  const read = (of: AvroSchema): unknown => {
    if (++values > 100000) throw new Error("more than 100,000 values");
    if (Array.isArray(of)) {
      const branch = of[int()];
      if (branch === undefined) throw new Error("an unknown branch of a union");
      return read(branch);
    }
    if (typeof of === "object") {
      const name = of["name"] as string | undefined;
      if (name && typeof of.type === "string" && ["record", "enum", "fixed", "error"].includes(of.type)) {
        named.set(name, of);
        const space = of["namespace"] as string | undefined;
        if (space) named.set(`${space}.${name}`, of);
      }
      switch (of.type) {
        case "record":
        case "error": {
          const found: Record<string, unknown> = {};
          for (const field of of["fields"] as { name: string; type: AvroSchema }[]) found[field.name] = read(field.type);
          return found;
        }
        case "enum": {
          const symbol = (of["symbols"] as string[])[int()];
          if (symbol === undefined) throw new Error("an unknown symbol");
          return symbol;
        }
        case "fixed": {
          const size = of["size"] as number;
          const start = take(size);
          return hex(bytes.subarray(start, start + size));
        }
        case "array": {
          const found: unknown[] = [];
          blocks(() => found.push(read(of["items"] as AvroSchema)));
          return found;
        }
        case "map": {
          const found: Record<string, unknown> = {};
          blocks(() => {
            const key = utf8(chunk());
            found[key] = read(of["values"] as AvroSchema);
          });
          return found;
        }
        default:
          return read(of.type);
      }
    }
    switch (of) {
      case "null":
        return null;
      case "boolean":
        return bytes[take(1)] === 1;
      case "int":
        return int();
      case "long": {
        const value = long();
        return value >= -(2n ** 53n) && value <= 2n ** 53n ? Number(value) : String(value);
      }
      case "float":
        return view.getFloat32(take(4), true);
      case "double":
        return view.getFloat64(take(8), true);
      case "bytes":
        return hex(chunk());
      case "string":
        return utf8(chunk());
      default: {
        const found = named.get(of);
        if (found === undefined) throw new Error(`the type ${of} is unknown`);
        return read(found);
      }
    }
  };
  const value = read(schema);
  if (at !== bytes.length) throw new Error(`${bytes.length - at} bytes are left`);
  return value;
}

function hex(bytes: Uint8Array): string {
  return [...bytes].map((one) => one.toString(16).padStart(2, "0")).join("");
}
