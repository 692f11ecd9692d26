// The paths of Vercel's AI SDK, with its providers of OpenAI and of servers like it.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, generateText, stepCountIs, streamText, tool } from "ai";
import {
  API_KEY, BASE_URL, City, DESCRIPTION, FACTS, MODEL, Person, QUESTION, WEATHER, checkAnswer,
  checkPerson, checkPieces, checkWeather, getWeather, report,
} from "./questions.mjs";

const openai = createOpenAI({ baseURL: BASE_URL, apiKey: API_KEY });
const compatible = createOpenAICompatible({
  name: "baton", baseURL: BASE_URL, apiKey: API_KEY, supportsStructuredOutputs: true,
});
const tools = {
  get_weather: tool({ description: DESCRIPTION, inputSchema: City, execute: getWeather }),
};

/** The pieces of a streamed text. The SDK tells failures to a callback. */
async function pieces(options) {
  const found = [], failures = [];
  const stream = streamText({ ...options, onError: ({ error }) => failures.push(error) });
  for await (const piece of stream.textStream) found.push(piece);
  if (failures.length) throw failures[0];
  return found;
}

const paths = (model) => ({
  async chat() {
    checkAnswer((await generateText({ model, prompt: QUESTION, maxRetries: 0 })).text);
  },
  async stream() {
    checkPieces(await pieces({ model, prompt: QUESTION, maxRetries: 0 }));
  },
  async tools() {
    const stopWhen = stepCountIs(3);
    checkWeather((await generateText({ model, prompt: WEATHER, tools, stopWhen })).text);
  },
  async "tools streamed"() {
    const stopWhen = stepCountIs(3);
    checkWeather((await pieces({ model, prompt: WEATHER, tools, stopWhen })).join(""));
  },
  async "several turns"() {
    const messages = [{ role: "user", content: WEATHER }];
    const stopWhen = stepCountIs(3);
    const first = await generateText({ model, messages, tools, stopWhen });
    messages.push(...first.response.messages, { role: "user", content: QUESTION });
    checkAnswer((await generateText({ model, messages })).text);
  },
  async structured() {
    const output = Output.object({ schema: Person });
    checkPerson((await generateText({ model, prompt: FACTS, output })).output);
  },
});

await report("openai (responses)", paths(openai(MODEL)));
await report("openai.chat", paths(openai.chat(MODEL)));
await report("openai-compatible", paths(compatible(MODEL)));
