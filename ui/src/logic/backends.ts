/** Backends, in words. Pure. */
import type { Upgrades } from '../api/messages';

/** Why a newer version is not offered. */
export function heldBackLine(bad: NonNullable<Upgrades['known_bad']>[number]): string {
  const version = bad.version || (bad.digest ?? '').slice(0, 19);
  return `${[bad.backend_name, version].filter(Boolean).join(' ')} is held back: it did not start on ${bad.node_name}. ${bad.reason ?? ''}`.trim();
}
