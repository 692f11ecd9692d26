// The paths of OpenAI's client for Node.
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import {
  API_KEY, BASE_URL, CITY_SCHEMA, DESCRIPTION, FACTS, MODEL, Person, QUESTION, WEATHER, asked,
  checkAnswer, checkPerson, checkPieces, checkWeather, getWeather, report,
} from "./questions.mjs";

const client = new OpenAI({ baseURL: BASE_URL, apiKey: API_KEY, maxRetries: 0 });
const callable = { name: "get_weather", description: DESCRIPTION, parameters: CITY_SCHEMA };
const runnable = { ...callable, parse: JSON.parse, function: getWeather };

async function pieces(stream, text) {
  const found = [];
  for await (const event of stream) found.push(text(event) ?? "");
  return found;
}

await report("chat completions", {
  async chat() {
    const fields = { model: MODEL, messages: asked(QUESTION) };
    const answer = await client.chat.completions.create(fields);
    checkAnswer(answer.choices[0].message.content);
  },
  async stream() {
    const stream = client.chat.completions.stream({ model: MODEL, messages: asked(QUESTION) });
    checkPieces(await pieces(stream, (chunk) => chunk.choices[0]?.delta.content));
  },
  async tools() {
    const runner = client.chat.completions.runTools({
      model: MODEL, messages: asked(WEATHER), tools: [{ type: "function", function: runnable }],
    });
    checkWeather(await runner.finalContent());
  },
  async "tools streamed"() {
    const runner = client.chat.completions.runTools({
      model: MODEL, messages: asked(WEATHER), stream: true,
      tools: [{ type: "function", function: runnable }],
    });
    checkWeather(await runner.finalContent());
  },
  async structured() {
    const answer = await client.chat.completions.parse({
      model: MODEL, messages: asked(FACTS), response_format: zodResponseFormat(Person, "person"),
    });
    checkPerson(answer.choices[0].message.parsed);
  },
});

await report("responses", {
  async chat() {
    const response = await client.responses.create({ model: MODEL, input: QUESTION });
    checkAnswer(response.output_text);
  },
  async stream() {
    const stream = client.responses.stream({ model: MODEL, input: QUESTION });
    const isText = (event) => event.type === "response.output_text.delta";
    checkPieces(await pieces(stream, (event) => (isText(event) ? event.delta : "")));
  },
  async tools() {
    const tools = [{ type: "function", strict: false, ...callable }];
    const first = await client.responses.create({ model: MODEL, input: WEATHER, tools });
    const [call] = first.output;
    const output = getWeather(JSON.parse(call.arguments));
    const result = { type: "function_call_output", call_id: call.call_id, output };
    const last = await client.responses.create({
      model: MODEL, input: [...asked(WEATHER), ...first.output, result], tools,
    });
    checkWeather(last.output_text);
  },
  async structured() {
    const response = await client.responses.parse({
      model: MODEL, input: FACTS, text: { format: zodTextFormat(Person, "person") },
    });
    checkPerson(response.output_parsed);
  },
});
