import { brotliCompressSync, constants, gzipSync } from 'node:zlib';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig, type Plugin } from 'vite';

/** Below this a compressed copy saves no packet. */
const COMPRESSED_FROM_BYTES = 1024;

/** Writes a .gz and a .br beside each text file: frontends serve them as they are. */
function precompressed(): Plugin {
  let folder = '';
  return {
    name: 'precompressed',
    apply: 'build',
    configResolved(config) {
      folder = config.build.outDir;
    },
    closeBundle() {
      for (const name of readdirSync(folder, { recursive: true, encoding: 'utf8' })) {
        if (!/\.(js|css|html|svg)$/.test(name)) continue;
        const path = join(folder, name);
        const content = readFileSync(path);
        if (content.length < COMPRESSED_FROM_BYTES) continue;
        writeFileSync(`${path}.gz`, gzipSync(content, { level: 9 }));
        writeFileSync(
          `${path}.br`,
          brotliCompressSync(content, {
            params: {
              [constants.BROTLI_PARAM_QUALITY]: 11,
              [constants.BROTLI_PARAM_MODE]: constants.BROTLI_MODE_TEXT,
            },
          }),
        );
      }
    },
  };
}

export default defineConfig({
  base: '/',
  plugins: [svelte(), precompressed()],
  worker: { format: 'es' },
  build: {
    target: ['chrome123', 'firefox125', 'safari17.5'],
    cssTarget: ['chrome123', 'firefox125', 'safari17.5'],
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    sourcemap: false,
    reportCompressedSize: false,
  },
  server: { proxy: { '/api': 'http://127.0.0.1:8080', '/v1': 'http://127.0.0.1:8080' } },
});
