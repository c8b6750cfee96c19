/** One conversation with one model, streamed; how quick it was, and which machine answered. */
import { consoleHeaders, problemOf } from '../api/client';
import { EventParser } from '../live/events';

export interface Picture {
  name: string;
  /** As a data: address. */
  url: string;
}

export interface Turn {
  role: 'user' | 'assistant';
  text: string;
  reasoning: string;
  pictures: Picture[];
  problem: unknown;
  stopped: boolean;
  /** Why the model ended, in its own word: `stop`, `length`. */
  finish: string;
  figures: Figures | null;
  /** By which the frontend explains it. */
  request: string;
}

export interface Figures {
  node: string;
  firstTokenMs: number;
  tokens: number;
  /** After the first token. */
  tokensPerSecond: number;
  /** Whether the model counted the tokens; otherwise it is the number of words. */
  counted: boolean;
}

export interface Parameters {
  system: string;
  temperature: string;
  topP: string;
  maxTokens: string;
  seed: string;
}

export const NO_PARAMETERS: Parameters = { system: '', temperature: '', topP: '', maxTokens: '', seed: '' };

interface Chunk {
  error?: { message?: string };
  choices?: { delta?: { content?: string | null; reasoning_content?: string | null; reasoning?: string | null }; finish_reason?: string | null }[];
  usage?: { completion_tokens?: number } | null;
}

const SPEED_MS_MIN = 50;

export class Chat {
  model = $state('');
  turns = $state<Turn[]>([]);
  busy = $state(false);
  #attempt: AbortController | null = null;

  stop(): void {
    this.#attempt?.abort();
  }

  clear(): void {
    this.stop();
    this.turns = [];
  }

  async ask(text: string, pictures: Picture[], parameters: Parameters): Promise<void> {
    this.turns.push({ ...NO_TURN, role: 'user', text, pictures });
    await this.#answer(parameters);
  }

  /** The last answer anew. */
  async again(parameters: Parameters): Promise<void> {
    if (this.turns.at(-1)?.role === 'assistant') this.turns.pop();
    await this.#answer(parameters);
  }

  async #answer(parameters: Parameters): Promise<void> {
    const asked = body(this.model, this.turns, parameters);
    this.turns.push({ ...NO_TURN, role: 'assistant' });
    const turn = this.turns.at(-1)!;
    const attempt = (this.#attempt = new AbortController());
    this.busy = true;
    try {
      await this.#stream(asked, turn, attempt.signal);
    } catch (error) {
      if (attempt.signal.aborted) turn.stopped = true;
      else turn.problem = error;
    } finally {
      this.busy = false;
    }
  }

  async #stream(asked: object, turn: Turn, signal: AbortSignal): Promise<void> {
    const beganMs = performance.now();
    const response = await fetch('/v1/chat/completions', {
      method: 'POST',
      signal,
      headers: { ...consoleHeaders('POST'), 'Content-Type': 'application/json', 'X-Remuda-Show-Node': '1' },
      body: JSON.stringify({ ...asked, stream: true, stream_options: { include_usage: true } }),
    });
    turn.request = response.headers.get('X-Request-Id') ?? '';
    if (!response.ok || !response.body) throw await problemOf(response);
    if (!response.headers.get('Content-Type')?.startsWith('text/event-stream')) throw new Error('What came back is not a stream of a model: does a proxy stand between this browser and the frontend?');
    let node = response.headers.get('X-Remuda-Node') ?? '';
    // Chromium drops a finished request of which a script has read the last bytes, and reports it as failed. One that the
    // browser reads by itself beside it is finished.
    const finished = response.clone().text().catch(() => '');
    const reader = response.body!.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
    const parser = new EventParser();
    let counted = 0;
    let firstMs = 0;
    let lastMs = 0;
    let whole = false;
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      for (const event of parser.feed(value)) {
        // A stream that began while the model was loading says so here.
        if (event.comment.startsWith('node ')) node = event.comment.slice('node '.length);
        if (event.data === '[DONE]') whole = true;
        if (!event.data || event.data === '[DONE]') continue;
        const chunk = JSON.parse(event.data) as Chunk;
        if (chunk.error) throw new Error(chunk.error.message ?? 'The model failed.');
        const delta = chunk.choices?.[0]?.delta;
        turn.text += delta?.content ?? '';
        turn.reasoning += delta?.reasoning_content ?? delta?.reasoning ?? '';
        if (delta?.content || delta?.reasoning_content || delta?.reasoning) {
          lastMs = performance.now();
          firstMs ||= lastMs;
        }
        turn.finish = chunk.choices?.[0]?.finish_reason ?? turn.finish;
        counted = chunk.usage?.completion_tokens ?? counted;
      }
      const tokens = counted || words(turn.text + turn.reasoning);
      turn.figures = {
        node,
        firstTokenMs: firstMs ? firstMs - beganMs : 0,
        tokens,
        tokensPerSecond: speed(tokens, lastMs - firstMs),
        counted: counted > 0,
      };
    }
    await finished;
    if (!whole && !turn.finish) throw new Error('The answer was cut off: the connection ended before the model did.');
  }
}

/** After the first token. What comes within so short a time came at once, and says nothing of a speed: 0. */
export function speed(tokens: number, ms: number): number {
  return tokens > 1 && ms >= SPEED_MS_MIN ? ((tokens - 1) * 1000) / ms : 0;
}

function words(text: string): number {
  return text.split(/\s+/).filter(Boolean).length;
}

export const NO_TURN: Turn = { role: 'user', text: '', reasoning: '', pictures: [], problem: null, stopped: false, finish: '', figures: null, request: '' };

/** What was asked last, and what led to it: without the answer that came. */
export function lastAsked(turns: readonly Turn[]): readonly Turn[] {
  return turns.slice(0, turns.findLastIndex((turn) => turn.role === 'user') + 1);
}

/** The request as any client would send it. */
export function body(model: string, turns: readonly Turn[], parameters: Parameters): Record<string, unknown> {
  const messages: unknown[] = parameters.system.trim() ? [{ role: 'system', content: parameters.system }] : [];
  for (const turn of turns) {
    if (turn.problem || (turn.role === 'assistant' && !turn.text)) continue;
    const parts = turn.pictures.map((one) => ({ type: 'image_url', image_url: { url: one.url } }));
    messages.push({ role: turn.role, content: parts.length ? [...(turn.text ? [{ type: 'text', text: turn.text }] : []), ...parts] : turn.text });
  }
  const numbers = { temperature: parameters.temperature, top_p: parameters.topP, max_tokens: parameters.maxTokens, seed: parameters.seed };
  const set = Object.entries(numbers).filter(([, value]) => value !== '' && !Number.isNaN(Number(value)));
  return { model, messages, ...Object.fromEntries(set.map(([key, value]) => [key, Number(value)])) };
}

/** The same request for a terminal and for Python; long pictures are cut. */
export function asCurl(asked: Record<string, unknown>, origin: string, keyed: boolean): string {
  const text = JSON.stringify(short(asked), null, 2).replaceAll("'", `'\\''`);
  const key = keyed ? ' \\\n  -H "Authorization: Bearer $REMUDA_API_KEY"' : '';
  return `curl ${origin}/v1/chat/completions${key} \\\n  -H "Content-Type: application/json" \\\n  -d '${text}'`;
}

export function asPython(asked: Record<string, unknown>, origin: string, keyed: boolean): string {
  const { model, messages, ...others } = short(asked) as Record<string, unknown>;
  const lines = Object.entries(others).map(([key, value]) => `    ${key}=${JSON.stringify(value)},\n`);
  return `from openai import OpenAI

client = OpenAI(base_url="${origin}/v1", api_key=${keyed ? '"YOUR KEY"' : '"none"'})
stream = client.chat.completions.create(
    model=${JSON.stringify(model)},
    messages=${JSON.stringify(messages, null, 4).replaceAll('\n', '\n    ')},
${lines.join('')}    stream=True,
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)`;
}

function short(asked: unknown): unknown {
  return JSON.parse(JSON.stringify(asked), (_key, value: unknown) =>
    typeof value === 'string' && value.startsWith('data:') && value.length > 80 ? `${value.slice(0, 40)}...` : value,
  );
}
