/** Servers that run without us, in words. Pure. */
import type { LiveServer, Server } from '../api/messages';
import type { Tone } from './tones';

export const KINDS: Record<string, string> = { openai: 'OpenAI', ollama: 'Ollama', anthropic: 'Anthropic' };

export function standing(server: Server): { word: string; tone: Tone } {
  if (server.up) return { word: 'answers', tone: 'ok' };
  return server.asked_at ? { word: 'absent', tone: 'bad' } : { word: 'not asked yet', tone: 'idle' };
}

export function inFlight(server: Server & { busy?: number }): number {
  return server.busy ?? (server.models ?? []).reduce((sum, one) => sum + (one.in_flight ?? 0), 0);
}

/** What changes from second to second. */
export function figuresOf(told: LiveServer | undefined): Partial<Pick<Server, 'spent' | 'committed'>> & { busy?: number } {
  return told ? { ...(told.spent ? { spent: told.spent } : {}), ...(told.committed ? { committed: told.committed } : {}), busy: told.in_flight ?? 0 } : {};
}

/** All but that: when it is another, there is more to ask for. */
export function shapeOf(told: Iterable<LiveServer>): string {
  return JSON.stringify([...told].map((one) => ({ ...one, spent: '', committed: '', in_flight: 0 })));
}

export function costLine(server: Server): string {
  return server.paid ? `${server.spent || '0'} of ${server.budget}` : 'free';
}

/** What a form of a server has, as it is written there. */
export interface Wish {
  url: string;
  name: string;
  kind: string;
  key: string;
  free: boolean;
  price: string;
  budget: string;
  parallel: string;
  maxTokens: string;
}

export function wishOf(server: Server | null, url = ''): Wish {
  const text = (number: number | undefined): string => (number ? String(number) : '');
  const each = Object.entries(server?.prices ?? {}).map(([model, price]) => (model === '*' ? price : `${model}=${price}`));
  return { url: server?.url ?? url, name: server?.name ?? '', kind: server?.kind ?? 'auto', key: '', free: false, price: each.join(', '), budget: server?.budget ?? '', parallel: text(server?.parallel), maxTokens: text(server?.max_tokens) };
}

/** READ/WRITTEN for every model, MODEL=READ/WRITTEN for one; names may hold a =, prices do not. */
export function readPrices(text: string): Record<string, string> {
  const found: Record<string, string> = {};
  for (const one of text.split(/[\s,]+/).filter(Boolean)) {
    const at = one.lastIndexOf('=');
    found[at < 0 ? '*' : one.slice(0, at)] = one.slice(at + 1);
  }
  return found;
}

/** The body of a request; of an edit what stays as it was is left out. */
export function asked(wish: Wish, before: Server | null): Record<string, unknown> {
  const [parallel, max_tokens] = [wish.parallel, wish.maxTokens].map((text) => Number(text.trim() || 0));
  // That tokens cost nothing is said only by who says it: the frontend asks for prices where a server is not our own.
  const priced = wish.price.trim() || wish.budget.trim() || before?.paid;
  const money = wish.free ? { free: true } : priced ? { free: false, prices: readPrices(wish.price), budget: wish.budget.trim() } : {};
  const name = before || !wish.name.trim() ? {} : { name: wish.name.trim() };
  const url = before && wish.url.trim() === before.url ? {} : { url: wish.url.trim() };
  const kind = before && (wish.kind === 'auto' || wish.kind === before.kind) ? {} : { kind: wish.kind };
  return { ...url, ...name, ...kind, ...(wish.key ? { key: wish.key } : {}), ...money, parallel, max_tokens };
}
