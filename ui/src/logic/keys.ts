/** API keys: what they may do and take, in words and figures. Pure. */
import type { Key } from '../api/messages';
import type { Tone } from './tones';

export const SCOPES = [
  { value: 'inference', label: 'Use models', help: 'Chat, completions, embeddings. Nothing else.' },
  { value: 'read', label: 'Read', help: 'See everything here and /metrics; change nothing.' },
  { value: 'admin', label: 'Admin', help: 'Everything, keys and machines included.' },
] as const;

export const LIMITS = [
  { field: 'requests_per_minute', label: 'Requests per minute', short: 'requests/min' },
  { field: 'tokens_per_minute', label: 'Tokens per minute', short: 'tokens/min' },
  { field: 'concurrent_requests', label: 'Requests at once', short: 'at once' },
  { field: 'tokens_per_day', label: 'Tokens per day', short: 'tokens/day' },
  { field: 'tokens_per_month', label: 'Tokens per month', short: 'tokens/month' },
] as const;
export type Limit = (typeof LIMITS)[number]['field'];

export function scopeLabel(key: Key): string {
  return SCOPES.find((one) => one.value === key.scope)?.label ?? key.scope ?? '';
}

export function keyState(key: Key): { word: string; tone: Tone } {
  if (key.state === 'paused') return { word: 'paused', tone: 'idle' };
  if (key.state === 'expired') return { word: 'expired', tone: 'warn' };
  return { word: 'active', tone: 'ok' };
}

/** 2M, 100k, 1500: no digit is lost. */
export function amount(number: number): string {
  for (const [unit, size] of [['G', 1e9], ['M', 1e6], ['k', 1e3]] as const) if (number >= size && (number * 10) % size === 0) return `${number / size}${unit}`;
  return String(number);
}

/** As people write it: 1500, 1,500, 100k, 2M. Nothing is 0: no limit. Null: it is no number. */
export function parseAmount(text: string): number | null {
  const found = /^(\d+(?:\.\d+)?)\s*([kMG]?)$/i.exec(text.replace(/[\s,_](?=\d)/g, '').trim());
  if (!text.trim()) return 0;
  if (!found) return null;
  const number = Number(found[1]) * { k: 1e3, m: 1e6, g: 1e9, '': 1 }[found[2]!.toLowerCase()]!;
  return Number.isSafeInteger(number) ? number : null;
}

/** Every limit that it has, in one line. */
export function limitsLine(key: Key): string {
  return LIMITS.filter((one) => key[one.field]).map((one) => `${amount(key[one.field]!)} ${one.short}`).join(', ');
}

/** What a form of its terms has, as it is written there. */
export interface Terms {
  models: string;
  limits: Record<Limit, string>;
  expires: string;
  weight: string;
  batch: boolean;
  mayRoute: boolean;
}

export function termsOf(key: Key | null): Terms {
  const limits = Object.fromEntries(LIMITS.map((one) => [one.field, key?.[one.field] ? amount(key[one.field]!) : ''])) as Record<Limit, string>;
  return { models: (key?.models ?? []).join(', '), limits, expires: key?.expires_at ? localTime(key.expires_at) : '', weight: String(key?.weight ?? 1), batch: key?.batch ?? false, mayRoute: key?.may_route ?? false };
}

/** Of `datetime-local`, which knows no zone. */
function localTime(at: string): string {
  const time = new Date(at);
  return new Date(time.getTime() - time.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

/** The body of a request that asks for these terms, or what is wrong with them. */
export function asked(terms: Terms, scope: string): { body: Record<string, unknown> } | { wrong: string } {
  const body: Record<string, unknown> = {};
  if (terms.expires) body['expires_at'] = new Date(terms.expires).toISOString();
  if (scope === 'read') return { body };
  for (const { field, label } of LIMITS) {
    const number = parseAmount(terms.limits[field]);
    if (number === null) return { wrong: `${label}: “${terms.limits[field]}” is no whole number; write one like 1500, 100k or 2M` };
    body[field] = number;
  }
  const weight = Number(terms.weight);
  if (!Number.isInteger(weight) || weight < 1) return { wrong: 'Weight must be a whole number from 1' };
  const models = terms.models.split(/[\s,]+/).filter(Boolean);
  return { body: { ...body, weight, batch: terms.batch, may_route: terms.mayRoute, ...(scope === 'inference' ? { models } : {}) } };
}
