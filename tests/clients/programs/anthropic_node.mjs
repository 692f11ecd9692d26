// The paths of Anthropic's client for Node.
import Anthropic from "@anthropic-ai/sdk";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import {
  API_KEY, BASE_URL, CITY_SCHEMA, DESCRIPTION, FACTS, MODEL, Person, QUESTION, WEATHER, asked,
  checkAnswer, checkPerson, checkPieces, checkWeather, getWeather, report,
} from "./questions.mjs";

const client = new Anthropic({
  baseURL: BASE_URL.replace(/\/v1$/, ""), apiKey: API_KEY, maxRetries: 0,
});
const fields = { model: MODEL, max_tokens: 200 };
const tools = [{ name: "get_weather", description: DESCRIPTION, input_schema: CITY_SCHEMA }];

await report("messages", {
  async chat() {
    const message = await client.messages.create({ ...fields, messages: asked(QUESTION) });
    checkAnswer(message.content[0].text);
  },
  async stream() {
    const found = [];
    const stream = client.messages.stream({ ...fields, messages: asked(QUESTION) });
    stream.on("text", (text) => found.push(text));
    await stream.finalMessage();
    checkPieces(found);
  },
  async tools() {
    const messages = asked(WEATHER);
    const first = await client.messages.create({ ...fields, tools, messages });
    const [call] = first.content;
    const result = { type: "tool_result", tool_use_id: call.id, content: getWeather(call.input) };
    messages.push({ role: "assistant", content: first.content });
    messages.push({ role: "user", content: [result] });
    const last = await client.messages.create({ ...fields, tools, messages });
    checkWeather(last.content[0].text);
  },
  async structured() {
    const message = await client.messages.parse({
      ...fields, messages: asked(FACTS), output_config: { format: zodOutputFormat(Person) },
    });
    checkPerson(message.parsed_output);
  },
});
