/** Light, dark, or as the system has it; kept in this browser. */

export type Theme = 'auto' | 'light' | 'dark';

const KEPT_AS = 'remuda-theme';

function kept(): Theme {
  const value = localStorage.getItem(KEPT_AS);
  return value === 'light' || value === 'dark' ? value : 'auto';
}

const DARK = matchMedia('(prefers-color-scheme: dark)');

class ThemeChoice {
  value = $state<Theme>(kept());
  #system = $state(DARK.matches);

  constructor() {
    DARK.addEventListener('change', (event) => (this.#system = event.matches));
  }

  /** What is shown, whoever has chosen it: what draws its own colours draws them anew. */
  get dark(): boolean {
    return this.value === 'auto' ? this.#system : this.value === 'dark';
  }

  choose(theme: Theme): void {
    this.value = theme;
    localStorage.setItem(KEPT_AS, theme);
    applyTheme();
  }
}

export const theme = new ThemeChoice();

export function applyTheme(): void {
  if (theme.value === 'auto') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
}
