/** Settings as a frontend lists them. Pure. */

export interface Setting {
  name: string;
  value: string;
  origin: string;
  help: string;
}

export function readSettings(body: unknown): Setting[] {
  const all = Array.isArray(body) ? body : ((body as { settings?: unknown[] } | null)?.settings ?? []);
  return (all as Record<string, unknown>[]).map((one) => ({
    name: String(one['setting'] ?? one['name'] ?? ''),
    value: written(one['value']),
    origin: String(one['origin'] ?? one['source'] ?? ''),
    help: [one['help'], one['note']].filter(Boolean).join(' '),
  }));
}

function written(value: unknown): string {
  if (value === null || value === undefined) return '';
  return typeof value === 'object' ? JSON.stringify(value) : String(value);
}
