// What every page is to the frame around it.

export interface Page {
  element: HTMLElement;
  /** For the title of the window. */
  title: string;
  destroy(): void;
  /** After the theme changed. */
  repaint?(): void;
  focusFilter?(): void;
}
