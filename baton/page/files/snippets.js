// A request of the playground as a command, and as a program. The key stays in dev.env.

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

export function curlOf(baseUrl, body) {
  return `. .baton/dev.env   # API_KEY
curl -N ${baseUrl}/chat/completions \\
  -H "Authorization: Bearer $API_KEY" -H "Content-Type: application/json" \\
  -d ${quoted(JSON.stringify({ ...body, stream: true }, null, 2))}
`;
}

function literal(value, indent = 0) {
  const pad = " ".repeat(indent + 4);
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const isList = Array.isArray(value);
  const parts = isList ? value.map((each) => literal(each, indent + 4)) : Object.entries(value).map(([key, each]) => `${JSON.stringify(key)}: ${literal(each, indent + 4)}`);
  const line = parts.join(", ");
  const [open, close] = isList ? "[]" : "{}";
  if (line.length < 70 && !line.includes("\n")) return `${open}${line}${close}`;
  return `${open}\n${parts.map((part) => `${pad}${part},\n`).join("")}${" ".repeat(indent)}${close}`;
}

export function pythonOf(baseUrl, body) {
  const options = Object.entries(body).map(([name, value]) => `    ${name}=${literal(value, 4)},\n`).join("");
  return `import os

from openai import OpenAI

# API_KEY is in .baton/dev.env
client = OpenAI(base_url=${JSON.stringify(baseUrl)}, api_key=os.environ["API_KEY"])
stream = client.chat.completions.create(
${options}    stream=True,
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
`;
}
