// What a request of the playground asks for beside its words: model, system prompt, sampling, tools, form.

import { node } from "/dom.js";

const EXAMPLE_TOOL = `[{"type": "function", "function": {
  "name": "get_weather",
  "parameters": {"type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"]}}}]`;
const EXAMPLE_SCHEMA = `{"type": "object",
  "properties": {"answer": {"type": "string"}},
  "required": ["answer"], "additionalProperties": false}`;
const NUMBERS = [["temperature", "Temperature", { min: "0", max: "2", step: "0.1" }], ["top_p", "Top p", { min: "0", max: "1", step: "0.05" }],
  ["max_tokens", "Most tokens", { min: "1", step: "1" }], ["seed", "Seed", { step: "1" }]];

function parsed(text, name) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${name}: ${error.message}`);
  }
}

export function chatSettings() {
  const model = node("select", { id: "chat-model" });
  const system = node("textarea", { id: "chat-system", rows: "2", placeholder: "none" });
  const stops = node("input", { id: "chat-stop", placeholder: "none" });
  const numbers = new Map(NUMBERS.map(([name, , more]) => [name, node("input", { id: `chat-${name}`, type: "number", placeholder: "default", ...more })]));
  const tools = node("textarea", { id: "chat-tools", class: "mono", rows: "4", placeholder: EXAMPLE_TOOL, spellcheck: "false" });
  const form = node("select", { id: "chat-form" }, node("option", { value: "" }, "text"), node("option", { value: "json_object" }, "any JSON object"), node("option", { value: "json_schema" }, "JSON by a schema"));
  const schema = node("textarea", { id: "chat-schema", class: "mono", rows: "4", placeholder: EXAMPLE_SCHEMA, spellcheck: "false" });
  const field = (label, input) => node("div", { class: "field" }, node("label", { for: input.id }, label), input);
  const schemaField = field("Schema", schema);
  schemaField.hidden = true;
  form.addEventListener("change", () => (schemaField.hidden = form.value !== "json_schema"));

  function format() {
    if (!form.value) return {};
    if (form.value === "json_object") return { response_format: { type: "json_object" } };
    const own = parsed(schema.value || EXAMPLE_SCHEMA, "Schema");
    return { response_format: { type: "json_schema", json_schema: { name: "answer", schema: own, strict: true } } };
  }

  const element = node("div", { class: "thread" }, field("Model", model), field("System prompt", system),
    node("div", { class: "pairs" }, ...NUMBERS.map(([name, label]) => field(label, numbers.get(name)))),
    node("details", {}, node("summary", {}, "Stop, tools, form of the answer"),
      node("div", { class: "thread" }, field("Stop at (A, B)", stops), field("Tools (JSON)", tools), field("Form of the answer", form), schemaField)));
  return {
    element,
    baseUrl: "",
    get model() {
      return model.value;
    },
    fill({ models, base_url: baseUrl }) {
      this.baseUrl = baseUrl;
      const chosen = model.value;
      // OpenAI's names are aliases; the models' own come first.
      const own = [...models].sort((a, b) => /^gpt-/.test(a) - /^gpt-/.test(b));
      model.replaceChildren(...own.map((name) => node("option", { value: name }, name)));
      if (own.includes(chosen)) model.value = chosen;
    },
    // Throws an Error that names what is not JSON.
    read() {
      const sampling = {};
      for (const [name, input] of numbers) if (input.value) sampling[name] = Number(input.value);
      const stop = stops.value.split(",").map((text) => text.trim()).filter(Boolean);
      if (stop.length) sampling.stop = stop;
      if (tools.value.trim()) sampling.tools = parsed(tools.value, "Tools");
      return {
        model: model.value,
        system: system.value.trim() ? [{ role: "system", content: system.value.trim() }] : [],
        sampling: { ...sampling, ...format() },
      };
    },
  };
}
